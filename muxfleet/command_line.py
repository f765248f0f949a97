"""The programs `muxfleet` and `muxfleet-haproxy`."""

from muxfleet.own_packages import claim


def main() -> None:
    claim()
    from deploy.cli import main as run

    run()


def haproxy() -> None:
    claim()
    from deploy.local.haproxy import main as run

    run()


if __name__ == "__main__":
    main()
