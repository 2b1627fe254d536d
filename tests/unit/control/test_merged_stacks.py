"""Ranks that are at the same place are one class."""

from __future__ import annotations

from holdfast.control.merged_stacks import StackClass, merge_stacks, read_threads

WAITING = """\
Thread 0x00007f{0} (most recent call first):
  File "/lib/threading.py", line 327 in wait
  File "/t.py", line 3 in idle

Current thread 0x00007e{0} (most recent call first):
  File "/t.py", line 6 in all_reduce
  File "/t.py", line 16 in <module>
"""
READING = """\
Thread 0x00007e01 [reader] (most recent call first):
  <no Python frame>

Thread 0x00007e00 [MainThread] (most recent call first):
  File "/t.py", line ??? in read
  File "/t.py", line 5 in next_batch
"""


def worker(rank: int, text: str = "", **more: str) -> dict[str, object]:
    return {"rank": rank, "pid": 70 + rank, "state": "sleeping", "text": text, **more}


def test_threads_are_read_the_main_thread_first() -> None:
    main, other = read_threads(READING)
    assert main == (
        "MainThread",
        ('File "/t.py", line ??? in read', 'File "/t.py", line 5 in next_batch'),
    )
    assert other == ("reader", ("<no Python frame>",))
    assert read_threads("not a stack\n  at all") == []


def test_equal_stacks_are_merged_whatever_their_threads_are_numbered() -> None:
    found = merge_stacks(
        [worker(3, READING), *(worker(rank, WAITING.format(f"{rank:04}")) for rank in (2, 0, 1))]
    )
    assert found == [
        StackClass(
            (0, 1, 2),
            "all_reduce ← <module>",
            (
                "main thread:",
                '  File "/t.py", line 6 in all_reduce',
                '  File "/t.py", line 16 in <module>',
                "thread:",
                '  File "/lib/threading.py", line 327 in wait',
                '  File "/t.py", line 3 in idle',
            ),
        ),
        StackClass(
            (3,),
            "read ← next_batch",
            (
                "main thread:",
                '  File "/t.py", line ??? in read',
                '  File "/t.py", line 5 in next_batch',
                "thread reader:",
                "  <no Python frame>",
            ),
        ),
    ]


def test_workers_without_a_stack_say_why() -> None:
    found = merge_stacks(
        [
            worker(0, why="it is no Python", waits_in="do_wait"),
            worker(1, why="it is no Python", waits_in="do_wait"),
            worker(2),
        ]
    )
    assert [(one.ranks, one.summary, one.lines) for one in found] == [
        ((0, 1), "no stack: it is no Python; sleeping in the kernel's do_wait", ()),
        ((2,), "no stack: it is empty; sleeping", ()),
    ]


def test_long_and_empty_stacks() -> None:
    frames = "".join(f'  File "/t.py", line {n} in f{n}\n' for n in range(9))
    deep = f"Thread 0x1 (most recent call first):\n{frames}"
    (found,) = merge_stacks([worker(0, deep)])
    assert found.summary == "f0 ← f1 ← f2 ← f3 ← f4 ← f5 ← …"
    (empty,) = merge_stacks([worker(0, "Thread 0x1 (most recent call first):\n")])
    assert (empty.summary, empty.lines) == (
        "no Python frame",
        ("main thread:", "  no Python frame"),
    )
