"""The rule catalogue: NAME.toml (contract), NAME.sql (evidence query), NAME.cases.toml (its proof), one folder a family."""
