"""What a bundle costs and holds: size tables, budgets, report.html."""
