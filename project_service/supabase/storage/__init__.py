"""``/storage/v1``: object storage where supabase-js and its like look for it.

These endpoints translate paths, headers, bodies, names and statuses; what happens is decided by ``storage``.
"""
