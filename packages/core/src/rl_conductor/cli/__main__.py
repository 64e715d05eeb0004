"""The program `rl-conductor`, which imports the command line where Ctrl-C already ends it without a traceback."""

from __future__ import annotations

from rl_conductor.cli import exit_codes


def main() -> None:
    """Runs the command line."""
    try:
        from rl_conductor.cli.main import main as run  # noqa: PLC0415 - takes half a second

        run()
    except KeyboardInterrupt:
        raise SystemExit(exit_codes.INTERRUPTED) from None


if __name__ == "__main__":
    main()
