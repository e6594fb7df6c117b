"""Reports on a bundle: size tables, budgets, report.html, profile pages."""
