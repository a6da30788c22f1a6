"""An erasure for people: the HTML page and the chart."""
