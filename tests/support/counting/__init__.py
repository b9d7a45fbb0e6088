"""Counting what code does instead of timing it: steps of loops and of expressions, characters handed to calls."""
