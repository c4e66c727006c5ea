"""Runs coding agents as they come from npm against the server, over a model that calls their tools by a script."""
