import test_real_faults as m
from test_real_faults import checkout, pytestmark, test_faults_of_a_live_deployment
m.LIVE = m.LIVE[-1:]
