"""Who replicates what with whom: replica sets, members, connections, schedules, filters.

`config.load`, `config.topologyfile` and `config.credentials` read it from files, `config.model` is what the rest of the
program sees, `config.check` refuses roots that cannot work before anything starts. This room imports nothing of
`agent`.
"""
