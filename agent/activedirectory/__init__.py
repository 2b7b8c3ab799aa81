"""Active Directory as the source of the topology ([MS-FRS1] 2.3, 3.1.2, 3.1.5.1)."""
