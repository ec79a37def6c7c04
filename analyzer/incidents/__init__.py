"""The incident lake: every diagnosis of a fleet in one directory of Parquet files, without a server (docs/incidents.md)."""
