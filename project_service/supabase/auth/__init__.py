"""``/auth/v1``: accounts and sessions where supabase-js and its like look for them, and in their form.

What is right and wrong is decided by ``auth``; here are paths, members, and what is not offered.
"""
