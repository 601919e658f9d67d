"""What was released, and what that says about a hospital: events, ledger, accountants, budget, theorems."""
