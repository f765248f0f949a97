from deploy.local.cluster_parts import PARTS, PartBack, PartEnded, PartsWatch

RAYLET, GCS, PROXY = 11, 12, 13
COMMANDS = {
    RAYLET: "/site/ray/core/src/ray/raylet/raylet --x",
    GCS: "/site/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/x",
    PROXY: "ray::ProxyActor",
    99: "ray::ServeReplica:units-sim:Unit",
}


def test_parts__all_run__nothing_is_said() -> None:
    watch = PartsWatch()

    assert [watch.look(COMMANDS, float(i)) for i in range(3)] == [[], [], []]


def test_parts__vital_one_ends__comes_before_the_others() -> None:
    watch = PartsWatch()
    watch.look(COMMANDS, 0.0)

    ended = watch.look({99: COMMANDS[99]}, 1.0)

    assert [(type(e), e.part.is_vital) for e in ended] == [(PartEnded, True), (PartEnded, True), (PartEnded, False)]
    assert {e.pid for e in ended if isinstance(e, PartEnded)} == {RAYLET, GCS, PROXY}


def test_parts__replaced_between_two_looks__is_said_both() -> None:
    watch = PartsWatch()
    watch.look(COMMANDS, 0.0)

    changes = watch.look({RAYLET: COMMANDS[RAYLET], GCS: COMMANDS[GCS], 14: "ray::ProxyActor"}, 1.0)

    assert [type(c) for c in changes] == [PartEnded, PartBack]


def test_parts__proxy_behind_haproxy_ends__is_told_from_one_that_takes_the_traffic() -> None:
    meanings = []
    for others in ({}, {15: "ray::HAProxyManager"}):
        watch = PartsWatch()
        watch.look(COMMANDS | others, 0.0)
        (ended,) = watch.look({pid: c for pid, c in (COMMANDS | others).items() if pid != PROXY}, 1.0)
        assert isinstance(ended, PartEnded)
        meanings.append(ended.meaning)

    assert meanings == ["streams through it broke, clients must ask again", "requests go through HAProxy, none is lost"]


def test_parts__back_later__with_the_time_it_took() -> None:
    watch = PartsWatch()
    watch.look(COMMANDS, 0.0)
    without = {pid: command for pid, command in COMMANDS.items() if pid != PROXY}
    watch.look(without, 1.0)
    assert watch.look(without, 2.0) == []

    (back,) = watch.look({**without, 14: "ray::ProxyActor"}, 9.0)

    assert isinstance(back, PartBack)
    assert (back.part.name, back.after_s) == ("Serve's proxy", 8.0)


def test_parts__any_two__are_told_apart_by_their_marks() -> None:
    assert len({part.mark for part in PARTS}) == len({part.name for part in PARTS}) == len(PARTS)
