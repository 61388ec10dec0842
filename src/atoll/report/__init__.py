"""What people look at: tables, drawings and pages."""
