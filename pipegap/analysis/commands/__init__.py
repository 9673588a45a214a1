"""The commands about results: one module each, with its KEYS and `main(given)`."""

COMMANDS = {
    "report": "every table and figure of a store",
    "figures": "the figures of a store for a paper: width, theme, PDF",
    "advise": "may I make my pipeline asynchronous?",
    "stability": "what delay and correction do to the edge of stability, by theory",
}
"""The first word of the command line → what the command does."""
