"""Endpoints for the clients of the Supabase family, over what the parts can do. No part knows this package."""
