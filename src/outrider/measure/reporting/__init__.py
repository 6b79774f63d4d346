"""The parts of a report: words, tables, charts, and how those become HTML, Markdown, SVG and PNG."""
