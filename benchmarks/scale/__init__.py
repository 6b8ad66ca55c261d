"""What a mix of requests costs on one machine, by part, and how many machines that makes at a rate.

::

    place     what runs, each part in a network namespace of its own, and what it uses
    mix       which requests, how often, and what was measured last
    traffic   clients that send them
    machines  how many machines follow; pure

``python -m benchmarks.scale``, as root: namespaces are its.
"""
