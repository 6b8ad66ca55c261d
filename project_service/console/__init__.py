"""The console: pages for operators at ``/console``. ``serving`` sends the files of ``app``."""
