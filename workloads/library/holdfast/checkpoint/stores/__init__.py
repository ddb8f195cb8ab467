"""Object stores behind one protocol, one module each, and the public names of the package."""

from holdfast.checkpoint.stores.factory import Retrying as Retrying
from holdfast.checkpoint.stores.factory import client_of as client_of
from holdfast.checkpoint.stores.factory import open_foreign_bucket as open_foreign_bucket
from holdfast.checkpoint.stores.factory import open_storage as open_storage
from holdfast.checkpoint.stores.local import LocalStorage as LocalStorage
from holdfast.checkpoint.stores.storage import Stat as Stat
from holdfast.checkpoint.stores.storage import Storage as Storage
from holdfast.checkpoint.stores.storage import crc32c as crc32c
from holdfast.checkpoint.stores.storage import numbers_below as numbers_below
from holdfast.checkpoint.stores.storage import put_new as put_new
from holdfast.checkpoint.stores.storage import read_object as read_object
