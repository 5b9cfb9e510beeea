"""Fixes: findings with evidence, and what a fix is worth."""
