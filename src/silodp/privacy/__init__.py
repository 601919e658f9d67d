"""What was released, and what that says about a hospital: events, the ledger, the accountants."""
