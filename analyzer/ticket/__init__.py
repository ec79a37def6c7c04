"""The incident ticket: a report without secrets and names, posted where the engineers read (docs/ticket.md)."""
