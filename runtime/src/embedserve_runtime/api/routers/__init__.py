"""The routes, a module for each dialect: FastAPI routers whose endpoints answer with bytes."""
