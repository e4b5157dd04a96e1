"""The dashboard: pages in a browser to see, understand and act. Needs `pip install 'holdfast[dashboard]'`.

    app          the application: its routes, and the checks of every request
    guard        the headers of every answer            access       who may look: by token, or on loopback
    oidc         login at an issuer                     graph        a flow as SVG
    sessions     signed cookies                         source       the store, its tenants and Queues
    page         what a page is                         view         one request for a page
    live         which fragment of a page changed       rendering    templates; `showing`: how values are shown
    histories    what happened to one job               timeline     the same as SVG
    tail         the newest events of a tenant, and its throughput, from the log while a page shows them
    server       a process of its own                   mounting     in your own application
    pages/       one file for each page: what it reads, and its actions
    templates/   its HTML                               static/      the style sheet and the script

A page is one module in `pages` with a `PAGE`, and one template of the same name: see `pages/__init__`.
"""

from holdfast.dashboard.access import ByToken, OnLoopback
from holdfast.dashboard.app import Dashboard
from holdfast.dashboard.mounting import mount_dashboard
from holdfast.dashboard.oidc import OidcSettings
from holdfast.dashboard.view import Viewer

__all__ = ["ByToken", "Dashboard", "OidcSettings", "OnLoopback", "Viewer", "mount_dashboard"]
