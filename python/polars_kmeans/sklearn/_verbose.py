"""What a fit prints while it runs: the words of scikit-learn."""

from __future__ import annotations

from polars_kmeans._progress import Progress


class Printer:
    """Prints the stages of a fit."""

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter
        self._last: Progress | None = None

    def __call__(self, done: Progress) -> None:
        """Print a stage that is done."""
        if done.stage == "seeds":
            self.end()
            print("Initialization complete")
        elif done.stage == "iteration":
            self._last = done
            print(f"Iteration {done.iteration - 1}, inertia {done.inertia}.")

    def end(self) -> None:
        """Say why the restart has ended whose iterations were printed, if any were."""
        last, self._last = self._last, None
        if last is None:
            return
        if last.changed == 0:
            print(f"Converged at iteration {last.iteration - 1}: strict convergence.")
        elif last.iteration < self._max_iter:
            print(f"Converged at iteration {last.iteration - 1}: center shift {last.shift} within tolerance.")
