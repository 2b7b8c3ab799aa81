"""The engine's actions on files, in worker threads: staging files in and out, installs."""
