from workloads.library.tests.checkpoint.conftest import bucket as bucket
from workloads.library.tests.checkpoint.conftest import gcs_emulator as gcs_emulator
