"""Names units after Serve's replicas, so that who reads what Serve says of a replica knows which unit it is."""


def unit_id_of(pool: str, replica_id: str) -> str:
    """Serve starts a replica's process once, so that this is new for every start of a unit."""
    return f"{pool}-{replica_id}"
