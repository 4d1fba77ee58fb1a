"""Envs, runs and reports for other programs: OpenEnv, verifiers, TRL, MCP, and a page in the browser."""
