"""The report as one page that needs nothing else: charts that react, tables that sort."""
