"""Reports for people: tables, drawings and pages."""
