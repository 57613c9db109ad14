"""What a chapter shows: tables, figures, widgets."""
