"""The node's images between two lives of a cluster: containerd's folder, kept in the cache.

Importing the demo's images takes minutes: every layer is written twice. containerd finds its folder again as it would
after a reboot of the node, and kubelet removes the dead containers in it. One folder is kept, whichever cluster comes
first; a rename gives it to one cluster alone.
"""

import contextlib

from .layout import Layout


def take(layout: Layout) -> None:
    """Give the kept images to a cluster that is about to start; without any it starts with none."""
    if layout.keeps_images:
        with contextlib.suppress(OSError):  # none kept, or on another file system
            layout.kept_images.rename(layout.images)


def keep(layout: Layout) -> None:
    """Keep the images of a cluster that is gone; not those of one that never came up, which may be why it did not."""
    if not (layout.keeps_images and layout.came_up.exists() and layout.images.exists()):
        return
    with contextlib.suppress(OSError):  # those of another cluster are kept already, or on another file system
        layout.images.rename(layout.kept_images)
