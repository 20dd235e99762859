"""Snakemake's logger plugin ``servemark``: Snakemake's messages and servemark's progress on one terminal.

``logger: servemark`` in a profile. Snakemake imports every plugin in every process, jobs included. So the display is imported when it is
used.
"""

from logging import LogRecord

from snakemake_interface_logger_plugins.base import LogHandlerBase

_STYLES = {"ERROR": "red", "CRITICAL": "red", "WARNING": "yellow"}


class LogHandler(LogHandlerBase):
    """Prints the records of Snakemake's log through :class:`servemark.display.screen.Screen`."""

    def __post_init__(self) -> None:
        """Make the screen of this process."""
        from snakemake.settings.enums import Quietness

        from servemark.display import screen

        given = self.common_settings
        # `--quiet` without a word asks for these two; the profiles add a third.
        silent = {Quietness.PROGRESS, Quietness.RULES}
        quiet = set(given.quiet or ())
        self._screen = screen.Screen(can_live=Quietness.ALL not in quiet and quiet != silent, stdout=given.stdout)
        self._field = screen.STYLE
        screen.install(self._screen)

    def emit(self, record: LogRecord) -> None:
        """Print a record."""
        try:
            text = self.format(record)
            if text and text != "None":
                self._screen.print(text, getattr(record, self._field, _STYLES.get(record.levelname)))
        except OSError:
            self.handleError(record)

    @property
    def writes_to_stream(self) -> bool:
        """It replaces Snakemake's own output."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Snakemake writes its log file itself."""
        return False

    @property
    def has_filter(self) -> bool:
        """Snakemake's filter knows ``quiet``."""
        return False

    @property
    def has_formatter(self) -> bool:
        """Snakemake formats its records."""
        return False

    @property
    def needs_rulegraph(self) -> bool:
        """The graph is not shown."""
        return False
