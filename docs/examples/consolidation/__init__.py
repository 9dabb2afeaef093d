"""A consolidation service: users take versions into work, and lockledger says whose turn it is."""
