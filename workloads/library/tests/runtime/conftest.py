from workloads.library.tests.training.conftest import trackers as trackers
