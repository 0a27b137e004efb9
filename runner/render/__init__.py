"""Renderers of the table model: terminal, Markdown, CSV, JSON."""
