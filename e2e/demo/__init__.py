"""The whole road in one command; its parts are what the cluster tests start from, too."""
