"""The report as one page that needs nothing else: charts that react, tables that sort."""

from analysis.page.configs import configs
from analysis.page.listing import Listing, listing
from analysis.page.page import Chapter, Drawn, Page, drawn, html

__all__ = ["Chapter", "Drawn", "Listing", "Page", "configs", "drawn", "html", "listing"]
