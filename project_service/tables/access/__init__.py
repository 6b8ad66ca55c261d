"""Who a request acts as: tokens, roles and claims."""
