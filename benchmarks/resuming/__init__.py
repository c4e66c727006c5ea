"""Clients whose connections break, or whose server is killed: they come back, and check every byte."""
