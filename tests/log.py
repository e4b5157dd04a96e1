"""The event log of a store, read as a whole."""


async def all_events(store, tenant=None, limit=500):
    """Every event, or every one of a tenant, in order: page after page of up to `limit`."""
    events, after = [], None
    while True:
        page = await store.events(tenant, after, limit)
        events += page.events
        after = page.next
        if not page.more:
            return events
