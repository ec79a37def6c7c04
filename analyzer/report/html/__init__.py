"""The report as one HTML page that works offline: text from the JSON report, curves and heat maps from the trace."""
