"""Runs gcp-storage-emulator with a thread for each request.

By itself it answers one after the other, and hangs: Arrow begins a request while it has read
another one's answer by half.
"""

from __future__ import annotations

from http import server

from gcp_storage_emulator.__main__ import main

if __name__ == "__main__":
    server.HTTPServer = server.ThreadingHTTPServer
    main()
