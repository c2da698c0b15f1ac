"""The colours of the pictures, and what style sheets call them."""

BLUE = "#1d4ed8"
PALE_BLUE = "#93c5fd"
ORANGE = "#c2410c"
TEAL = "#0f766e"
VIOLET = "#7c3aed"
GREY = "#a1a1aa"
INK, SOFT, AXIS, LINE = "#1f2937", "#4b5563", "#9ca3af", "#e5e7eb"

SERIES = (BLUE, ORANGE, TEAL, VIOLET, PALE_BLUE, GREY)
"""Curves of one picture, in this order."""

PARTS = {
    "arithmetic": BLUE,
    "communication": ORANGE,
    "arithmetic_and_communication": VIOLET,
    "data": TEAL,
    "other": GREY,
}
"""The parts of a worker's time."""

VARIABLES = {
    BLUE: "--blue",
    PALE_BLUE: "--pale-blue",
    ORANGE: "--orange",
    TEAL: "--teal",
    VIOLET: "--violet",
    GREY: "--grey",
    INK: "--ink",
    SOFT: "--soft",
    AXIS: "--axis",
    LINE: "--line",
}
"""A page shows them in shades of its own: its reader may like it light or dark."""
