"""One file a format. A module here with `LINE` (a LineFormat) or `FILE` (a FileFormat) is found by its being here."""
