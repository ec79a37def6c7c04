"""Views of a Diagnosis. The JSON report is the product; every other format is a view of it."""
